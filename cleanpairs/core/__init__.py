"""What everything else stands on: errors, limits, parameters, the registry, recipes, processes, opening of files."""
