"""The network as a graph of nodes, and the rules that it keeps."""
