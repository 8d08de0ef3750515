"""Several plans of one network: under all methods, on more devices, with other values."""
