"""Models and data that the experiments of the course run on."""
