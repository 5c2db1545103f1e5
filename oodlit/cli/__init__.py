"""The `oodlit` command: `main` reads the words, every command is one plain function in a file of its own."""
