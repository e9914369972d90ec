"""Mutation runs: one line of the code is made wrong at a time, and some test must fail.

`nox -s mutants` does it all: the tests run once under coverage, to learn which test executes which line; then
each mutation of a seeded choice is put into a copy of the tree and the tests of its line run there. See
`python -m tests.mutants --help` for seed, number and areas.
"""
