"""What is under test: a device and the implementations of one plugin for it."""
