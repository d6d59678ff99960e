#pragma once
// What the rows of matrix products share.

#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

enum class ProductCall { strided, by_kind };

/// Times the session's cases through cuBLAS on random data: seconds with their flops.
void time_products(Session& session, ProductCall call);

}  // namespace shardfit::calibrate
