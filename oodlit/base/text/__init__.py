"""Text for people: names that they write, keys as they read them, and warnings at their lines."""
