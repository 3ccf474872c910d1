"""Wire structs: what the JSON API takes and gives, and how it becomes domain values and back."""
