"""The controller: which replica of a broker set is its master, agreed on by one or three processes."""
