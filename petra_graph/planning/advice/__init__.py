"""What a plan says beside its numbers: what they rest on, what is weak, and which key of the specification changes it."""
