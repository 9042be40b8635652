"""What a hostile peer sends, and what a judge makes of the answer."""
