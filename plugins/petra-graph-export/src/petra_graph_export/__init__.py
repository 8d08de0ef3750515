"""What a trained network says about files and texts, and the network as a file for other programs."""
