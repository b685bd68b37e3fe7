// Memory of one thread, kept from call to call and aligned to 64 bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

namespace looseleaf {

class Scratch {
 public:
  // What it held is lost when it grows.
  char* at_least(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<char*>(::operator new(size_t(bytes), alignment)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(char* p) const { ::operator delete(p, alignment); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace looseleaf
