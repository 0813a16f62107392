"""Towers, pooling and the dual encoders made of them."""
