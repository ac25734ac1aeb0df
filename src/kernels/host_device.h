// Functions that nvcc compiles for the device as well carry BARESTEP_HD.
#pragma once

#if defined(__CUDACC__)
#define BARESTEP_HD __host__ __device__
#else
#define BARESTEP_HD
#endif
