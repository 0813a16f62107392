"""Pure tensor and array algebra, with no type of the project in it."""
