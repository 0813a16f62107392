"""One command's work each, from its input to its files; the command line only parses and prints."""
