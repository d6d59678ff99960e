#include "calibrate/gpu/virtual_memory.h"

#include "calibrate/gpu/check.h"

namespace shardfit::calibrate {
namespace {

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  // The driver's and the runtime's numbers agree where it matters: 2 is out of memory.
  throw CudaError(result, std::string(call) + " failed with driver error " +
                              std::to_string(static_cast<int>(result)));
}

}  // namespace

VirtualMemory::VirtualMemory(int device)
    : library_("the CUDA driver", "cuMemCreate", {"libcuda.so.1"}), device_(device) {
  if (!there()) return;
  library_.get(granularity_, "cuMemGetAllocationGranularity");
  library_.get(reserve_, "cuMemAddressReserve");
  library_.get(free_, "cuMemAddressFree");
  library_.get(create_, "cuMemCreate");
  library_.get(release_, "cuMemRelease");
  library_.get(map_, "cuMemMap");
  library_.get(unmap_, "cuMemUnmap");
  library_.get(access_, "cuMemSetAccess");
}

CUmemAllocationProp VirtualMemory::properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_;
  return properties;
}

std::int64_t VirtualMemory::granularity(bool recommended) const {
  const CUmemAllocationProp wanted = properties();
  std::size_t bytes = 0;
  check(granularity_(
            &bytes, &wanted,
            recommended ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  return static_cast<std::int64_t>(bytes);
}

VirtualMemory::Range::Range(const VirtualMemory& of, std::int64_t bytes)
    : of_(&of), bytes_(static_cast<std::size_t>(bytes)) {
  check(of.reserve_(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
}

VirtualMemory::Range::~Range() {
  if (address_) of_->free_(address_, bytes_);
}

VirtualMemory::Page::Page(const VirtualMemory& of, std::int64_t address, std::int64_t bytes)
    : of_(&of),
      address_(static_cast<CUdeviceptr>(address)),
      bytes_(static_cast<std::size_t>(bytes)) {
  const CUmemAllocationProp wanted = of.properties();
  check(of.create_(&handle_, bytes_, &wanted, 0), "cuMemCreate");
  try {
    check(of.map_(address_, bytes_, 0, handle_, 0), "cuMemMap");
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location = wanted.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(of.access_(address_, bytes_, &access, 1), "cuMemSetAccess");
  } catch (...) {
    release();
    throw;
  }
}

void VirtualMemory::Page::release() {
  if (mapped_) of_->unmap_(address_, bytes_);
  if (handle_) of_->release_(handle_);
  mapped_ = false;
  handle_ = 0;
}

VirtualMemory::Page::~Page() { release(); }

}  // namespace shardfit::calibrate
