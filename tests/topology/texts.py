"""Small texts of our own in every format, each of a machine with two GPUs or more."""

from __future__ import annotations

TOPO = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     PIX     0-3,8   0               N/A
GPU1    NV4      X      SYS     4-7     1               N/A
NIC0    PIX     SYS      X

NIC Legend:

  NIC0: mlx5_0
"""
P2P = "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n"
NVLINK = "GPU 0: A100 (UUID: GPU-0)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 1: A100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n"
SMI_XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.1</driver_version>
  <attached_gpus>2</attached_gpus>
  <gpu id="00000000:03:00.0">
    <product_name>NVIDIA A100</product_name>
    <product_architecture>Ampere</product_architecture>
    <uuid>GPU-0</uuid>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><index>0</index><fb_memory_usage><total>1 GiB</total></fb_memory_usage></mig_device></mig_devices>
    <pci>
      <pci_device_id>20B210DE</pci_device_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
      </pci_gpu_link_info>
    </pci>
    <performance_state>P0</performance_state>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <ecc_errors><volatile><dram_correctable>7</dram_correctable><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
      <dram_uncorrectable>2</dram_uncorrectable></volatile></ecc_errors>
    <fb_memory_usage><total>40960 MiB</total><used>3 MiB</used></fb_memory_usage>
    <temperature><gpu_temp>33 C</gpu_temp></temperature>
    <gpu_power_readings><power_draw>61.50 W</power_draw><current_power_limit>200.00 W</current_power_limit>
      <default_power_limit>400.00 W</default_power_limit></gpu_power_readings>
    <max_clocks><mem_clock>1215 MHz</mem_clock></max_clocks>
    <processes><process_info><type>C</type></process_info><process_info><type>G</type></process_info></processes>
  </gpu>
  <gpu id="00000000:04:00.0"><product_name>NVIDIA A100</product_name>
    <pci><pci_gpu_link_info><pcie_gen><current_link_gen>N/A</current_link_gen></pcie_gen></pci_gpu_link_info></pci>
    <ecc_mode><current_ecc>Disabled</current_ecc></ecc_mode>
  </gpu>
</nvidia_smi_log>
"""
NCCL_XML = """\
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:03:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:c1:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:c2:00.0" count="9" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:05:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
          <net name="mlx5_1" dev="1" speed="200000" port="2" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:83:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:c1:00.0" count="9" tclass="0x068000"/>
        <nvlink target="0000:c2:00.0" count="9" tclass="0x068000"/></gpu>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000"/></nic>
  </cpu>
</system>
"""
HWLOC = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0">
    <info name="HostName" value="node07"/><info name="Architecture" value="x86_64"/>
    <object type="Package" os_index="0" cpuset="0x0000000f">
      <info name="CPUVendor" value="AuthenticAMD"/><info name="CPUFamilyNumber" value="25"/>
      <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="1024"/>
      <object type="L3Cache" cpuset="0x00000003" depth="3" cache_size="33554432" cache_type="0">
        <object type="Core" os_index="0" cpuset="0x00000001"/><object type="Core" os_index="1" cpuset="0x00000002"/>
      </object>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-07]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0" pci_type="0604 [1022:1453] [0000:0000] 00">
          <object type="Bridge" bridge_type="1-1" pci_busid="0000:01:00.0" pci_type="0604 [10b5:8747] [0000:0000] 00">
            <object type="Bridge" bridge_type="1-1" pci_busid="0000:02:01.0" pci_type="0604 [10b5:8747] [0000:0000] 00">
              <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:20b2] [0000:0000] a1" pci_link_speed="31.507692">
                <object type="OSDev" name="cuda0" osdev_type="5"><info name="GPUModel" value="A100"/></object>
              </object>
            </object>
            <object type="Bridge" bridge_type="1-1" pci_busid="0000:02:02.0" pci_type="0604 [10b5:8747] [0000:0000] 00">
              <object type="PCIDev" pci_busid="0000:04:00.0" pci_type="0207 [15b3:101b] [0000:0000] 00">
                <object type="OSDev" name="ib0" osdev_type="2"/><object type="OSDev" name="mlx5_0" osdev_type="3"/>
              </object>
            </object>
          </object>
        </object>
        <object type="PCIDev" pci_busid="0000:00:02.0" pci_type="0300 [1a03:2000] [0000:0000] 41"/>
        <object type="PCIDev" pci_busid="0000:00:03.0" pci_type="0302 [10de:20b2] [0000:0000] a1"/>
      </object>
    </object>
  </object>
</topology>
"""
P2P_TEST = """\
Device: 0, Some GPU, pciBusID: 3, pciDeviceID: 0, pciDomainID:0
Device: 1, Some GPU, pciBusID: 4, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CANNOT Access Peer Device=0
P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 700.00   9.00
     1   9.10 710.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 720.00  20.00
     1  21.00 730.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.00   1.50
     1   1.60   2.10

   CPU     0      1
     0   2.90   2.50
     1   2.60   3.10
"""
ROCM = """\
$ rocm-smi --showtopo

============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           72
GPU1   15           0            72
GPU2   72           72           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            3
GPU1   1            0            3
GPU2   3            3            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Affinity: 0
GPU[2]\t\t: (Topology) Numa Node: 1
GPU[2]\t\t: (Topology) Numa Affinity: 1
================================== End of ROCm SMI Log ===================================
"""
ROCM_JSON = """\
{"card0": {"(Topology) Numa Node": "0", "(Topology) Numa Affinity": "0"},
 "card1": {"(Topology) Numa Node": "0", "(Topology) Numa Affinity": "0"},
 "system": {"(Topology) Weight between DRM devices 0 and 1": "15",
  "(Topology) Hops between DRM devices 0 and 1": "1",
  "(Topology) Link type between DRM devices 0 and 1": "XGMI"}}
"""
AMD = """\
ACCESS TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 ENABLED      DISABLED
0000:26:00.0 ENABLED      ENABLED

WEIGHT TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 0            15
0000:26:00.0 15           0

HOPS TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 0            1
0000:26:00.0 1            0

LINK TYPE TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 SELF         XGMI
0000:26:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 N/A          50000-64000
0000:26:00.0 50000-64000  N/A

CACHE COHERANCY TABLE:
             0000:05:00.0 0000:26:00.0
0000:05:00.0 SELF         NC
0000:26:00.0 NC           SELF
"""
AMD_JSON = """\
[{"gpu": 0, "bdf": "0000:05:00.0", "links": [
  {"gpu": 0, "bdf": "0000:05:00.0", "weight": 0, "link_status": "ENABLED", "link_type": "SELF",
   "num_hops": 0, "bandwidth": "N/A", "coherent": "SELF"},
  {"gpu": 1, "bdf": "0000:26:00.0", "weight": 40, "link_status": "DISABLED", "link_type": "PCIE",
   "num_hops": 2, "bandwidth": "N/A", "coherent": "NC"}]},
 {"gpu": 1, "bdf": "0000:26:00.0", "links": [
  {"gpu": 0, "bdf": "0000:05:00.0", "weight": 40, "link_status": "DISABLED", "link_type": "PCIE",
   "num_hops": 2, "bandwidth": "N/A", "coherent": "NC"},
  {"gpu": 1, "bdf": "0000:26:00.0", "weight": 0, "link_status": "ENABLED", "link_type": "SELF",
   "num_hops": 0, "bandwidth": "N/A", "coherent": "SELF"}]}]
"""
NVBANDWIDTH = """\
nvbandwidth Version: v0.8
Device 0: Some GPU (00000000:03:00)
Device 1: Some GPU (00000000:04:00)
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.25     54.00

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.00
 1    275.00       N/A
"""
NVBANDWIDTH_JSON = """\
{"nvbandwidth": {"testcases": [{"name": "device_to_device_memcpy_read_ce", "status": "Passed",
 "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s) ",
 "bandwidth_matrix": [["N/A", "276.00"], ["275.00", "N/A"]]}, {"name": "x", "status": "Waived"}]}}
"""
SYSFS = """\
/sys/devices/pci0000:00/0000:00:01.0/class:0x060400
/sys/devices/pci0000:00/0000:00:01.0/max_link_speed:16.0 GT/s PCIe
/sys/devices/pci0000:00/0000:00:01.0/max_link_width:16
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/class:0x030200
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/vendor:0x10de
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/current_link_speed:2.5 GT/s PCIe
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/current_link_width:16
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/max_link_speed:16.0 GT/s PCIe
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/max_link_width:16
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/numa_node:0
/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/iommu_type:DMA-FQ
/sys/devices/pci0000:00/0000:00:02.0/class:0x060400
/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/class:0x020000
/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/vendor:0x15b3
/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/current_link_width:8
/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/max_link_width:16
/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/net/eth0/speed:100000
/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/infiniband/mlx5_0/ports/1/rate:100 Gb/sec (4X EDR)
/sys/devices/pci0000:80/0000:80:01.0/class:0x060400
/sys/devices/pci0000:80/0000:80:01.0/0000:83:00.0/class:0x030000
/sys/devices/pci0000:80/0000:80:01.0/0000:83:00.0/vendor:0x10de
/sys/devices/pci0000:80/0000:80:01.0/0000:83:00.0/numa_node:1
/sys/devices/system/node/node0/cpulist:0-1
/sys/devices/system/node/node0/distance:10 21
/sys/devices/system/node/node0/memory_kb:1024
/sys/devices/system/node/node1/cpulist:2-3
/sys/devices/system/node/node1/distance:21 10
/sys/devices/system/cpu/cpu0/topology/physical_package_id:0
/sys/devices/system/cpu/cpu0/topology/thread_siblings_list:0-1
/sys/devices/system/cpu/cpu2/topology/physical_package_id:1
/sys/devices/system/cpu/cpu2/topology/thread_siblings_list:2-3
/sys/devices/system/cpu/cpu0/cache/index3/level:3
/sys/devices/system/cpu/cpu0/cache/index3/type:Unified
/sys/devices/system/cpu/cpu0/cache/index3/size:32768K
/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list:0-1
/sys/class/iommu/count:2
/proc/cpuinfo/vendor_id:GenuineIntel
/proc/cpuinfo/cpu family:6
/proc/cpuinfo/model:143
"""
OWN_JSON = """\
{"busbar_topology": 1, "sources": ["x"], "devices": [
 {"id": "GPU0", "kind": "gpu", "index": 0, "facts": [["sm", 90, "x"]]}, {"id": "GPU1", "kind": "gpu", "index": 1}],
 "links": [{"kind": "nvlink", "a": "GPU0", "b": "GPU1", "source": "x", "count": 6}],
 "pairs": [{"a": "GPU0", "b": "GPU1", "name": "level", "value": "NODE", "source": "x"}],
 "gaps": [{"source": "x", "subject": "GPU0", "call": "c", "reason": "r"}]}
"""
VALID = [
    ("smi_topo", TOPO),
    ("smi_p2p", P2P),
    ("smi_nvlink", NVLINK),
    ("smi_xml", SMI_XML),
    ("amd", ROCM),
    ("amd", ROCM_JSON),
    ("amd", AMD),
    ("amd", AMD_JSON),
    ("nccl_xml", NCCL_XML),
    ("hwloc", HWLOC),
    ("bandwidth", P2P_TEST),
    ("bandwidth", NVBANDWIDTH),
    ("bandwidth", NVBANDWIDTH_JSON),
    ("sysfs", SYSFS),
    ("own_json", OWN_JSON),
]
