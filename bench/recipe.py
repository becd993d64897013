"""Files that start Busbar under Slurm, in Kubernetes and in a container: ``busbar recipe``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "recipe")
