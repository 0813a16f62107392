"""One command's work each, from its input to its files. The command line only parses and prints."""
