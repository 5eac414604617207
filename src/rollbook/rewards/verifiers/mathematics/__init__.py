"""Reading answers as mathematics and comparing what was read; nothing here evaluates text as a program."""
