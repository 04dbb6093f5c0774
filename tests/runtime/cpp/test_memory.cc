#include "memory.h"

#include <cstring>
#include <thread>
#include <vector>

#include "test_main.h"

using disc::MemoryPool;

TEST(size_classes_hold_and_waste_little) {
  for (size_t n = 1; n < (size_t{1} << 40); n = n * 9 / 8 + 1) {
    const size_t c = disc::size_class(n);
    EXPECT(c >= n && (n <= 4096 || c <= n + n / 8 + 1));
    EXPECT_EQ(disc::size_class(c), c);
  }
  EXPECT_EQ(disc::size_class(~size_t{0}), 0u);
}

TEST(blocks_come_back_and_are_trimmed) {
  MemoryPool pool;
  const MemoryPool::Block a = pool.acquire(3 << 20);
  EXPECT(a.data && reinterpret_cast<uintptr_t>(a.data) % 64 == 0);
  std::memset(a.data, 1, a.size);
  pool.release(a);
  EXPECT_EQ(pool.in_use(), 0);
  const MemoryPool::Block b = pool.acquire((3 << 20) - 100);
  EXPECT_EQ(b.data, a.data);
  EXPECT_EQ(pool.kept(), 0);
  pool.release(b);
  EXPECT(pool.kept() >= 3 << 20);
  pool.trim();
  EXPECT_EQ(pool.kept(), 0);
}

TEST(too_much_memory_is_refused) {
  MemoryPool pool;
  EXPECT(!pool.acquire(~size_t{0}).data);
  EXPECT(!pool.acquire(size_t{1} << 60).data);
  EXPECT_EQ(pool.in_use(), 0);
}

TEST(pool_is_thread_safe) {
  MemoryPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        const MemoryPool::Block b = pool.acquire(static_cast<size_t>(1000 + 5000 * ((i + t) % 7)));
        std::memset(b.data, t, b.size);
        pool.release(b);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(pool.in_use(), 0);
  pool.trim();
}
