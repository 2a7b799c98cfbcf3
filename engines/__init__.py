"""The kinds of engines: a folder for each, and what they share. `registry` names them."""
