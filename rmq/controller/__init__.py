"""The controller: which replica of a broker set is its master, agreed on by 1 or 3 processes."""
