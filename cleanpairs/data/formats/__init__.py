"""Readers of what other tools write, one format a file; see :data:`cleanpairs.core.registry.READERS`."""
