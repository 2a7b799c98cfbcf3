"""A backup: one file with the home, the tables and the weights of one moment.

`cut` takes the moment, `tables` copies those of PostgreSQL, `archive` writes the file and reads it again.
"""
