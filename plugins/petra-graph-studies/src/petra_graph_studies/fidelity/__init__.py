"""How close the gradients of a training method are to the exact ones."""
