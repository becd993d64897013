"""Time training steps: ``python -m bench.step --ranks 4 --model resnet50 --compute fixed:50``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:step")
