"""Data sets: training and test halves of uint8 images, augmented by (seed, epoch, index) alone."""
