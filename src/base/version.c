/* Which libraries base is built with and runs with. */
#include "base/base.h"

#include <jansson.h>
#include <xxhash.h>
#include <yaml.h>

void im_base_libraries(im_str *out)
{
    unsigned xxh = XXH_versionNumber();
    im_str_printf(out, "jansson %s, libyaml %s, xxHash %u.%u.%u", jansson_version_str(), yaml_get_version_string(), xxh / 10000, xxh / 100 % 100,
                  xxh % 100);
}
