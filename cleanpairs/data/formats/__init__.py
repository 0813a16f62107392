"""Readers of what other tools write, one format a file; see :data:`cleanpairs.registry.READERS`."""
