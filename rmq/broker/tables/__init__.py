"""Tables of the broker: topics, groups, offsets, queue locks, statistics; with their files and versions."""
