"""What runs a part on either side."""
