"""The shapes and costs of nodes, measured without memory."""
