"""The parts that a port-Hamiltonian model is composed of: potentials, masses, dampings."""
