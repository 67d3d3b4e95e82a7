"""Small training scripts in many styles, and the table that says what each of them does."""
