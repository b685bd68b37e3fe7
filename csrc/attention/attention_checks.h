// Checks that every operator on attention shares.
#pragma once
#include <string>

#include "attention.h"

namespace looseleaf {

// auto, on or off; throws for another name.
Cascade checked_cascade(const std::string& name);

}  // namespace looseleaf
