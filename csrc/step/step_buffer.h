// Memory that is kept from call to call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace looseleaf {

// A buffer that only grows; its contents do not survive growing.
template <class T>
class StepBuffer {
 public:
  StepBuffer() = default;
  StepBuffer(const StepBuffer&) = delete;
  StepBuffer& operator=(const StepBuffer&) = delete;
  ~StepBuffer() { std::free(data_); }

  // At least `count` numbers, aligned to 64 bytes; valid until the next call.
  T* get(int64_t count) {
    if (count > capacity_) {
      std::free(data_);
      capacity_ = 0;
      data_ = static_cast<T*>(std::aligned_alloc(64, (size_t(count) * sizeof(T) + 63) / 64 * 64));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = count;
    }
    return data_;
  }
  int64_t bytes() const { return capacity_ * int64_t(sizeof(T)); }

 private:
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace looseleaf
