// BARESTEP_HD marks functions that nvcc also compiles for the device.
#pragma once

#if defined(__CUDACC__)
#define BARESTEP_HD __host__ __device__
#else
#define BARESTEP_HD
#endif
