"""The labelling page: questions about pairs, a log of the answers, and what follows from them."""
