"""The files of a store: log, queues, index, checkpoint, markers; and the disk."""
