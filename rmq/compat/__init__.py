"""Names of other clients over the client of rmq: a program moves by a change of its imports."""
