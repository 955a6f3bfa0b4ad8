"""Looking at the network from here: who answers, at which ports, with which hardware address."""
