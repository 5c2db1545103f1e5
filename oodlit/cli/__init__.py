"""The `oodlit` command: `main` reads the arguments, and every command is a plain function in a separate file."""
