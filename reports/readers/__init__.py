"""Every log becomes the same rows: nccl-tests, OSU, IMB and Busbar's own files, recognised."""
