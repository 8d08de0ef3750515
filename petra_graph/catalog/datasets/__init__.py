"""Data sets: training and test splits of uint8 images, augmented by (seed, epoch, index) alone."""
