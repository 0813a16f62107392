"""Readers of what other tools write, one format a file. See :data:`cleanpairs.core.registry.READERS`."""
