// The status of a thread's latest call of the C API.
#ifndef DISC_LAST_ERROR_H
#define DISC_LAST_ERROR_H

#include "status.h"

namespace disc {

int32_t set_last_error(const Status& status);  // its code
const Status& last_error();

}  // namespace disc
#endif
