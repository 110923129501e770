"""The local pipeline: a file or standard input, counted privately in one process."""
