"""`delaymq group`: consumer groups, their members and offsets."""
