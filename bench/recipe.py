"""Write files to start Busbar in Slurm, Kubernetes or a container: ``busbar recipe``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "recipe")
