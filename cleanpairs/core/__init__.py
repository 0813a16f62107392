"""The base of the package: errors, limits, parameters, the registry, recipes, processes, opening of files."""
